"""The words of the embedded catalogue: products, attributes, options and sentences, all our own."""
