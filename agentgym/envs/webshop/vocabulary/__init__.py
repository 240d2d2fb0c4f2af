"""The words of the embedded catalogue: kinds of product, attributes, options and sentences, all our own."""
