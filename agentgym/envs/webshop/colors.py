"""The colour words of the reward, in the order in which they are looked for."""

_COLOR_WORDS = """
    alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown
    burgundy camel camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee
    cognac copper coral cranberry cream crystal dark denim eggplant elephant espresso fuchsia gold
    granite grape graphite grass gray green grey heather indigo ivory ivy khaki lavender lemon
    leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor mushroom
    mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal
    rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal
    tiger turquoise violet walnut wheat white wine yellow
"""

COLORS: tuple[str, ...] = tuple(_COLOR_WORDS.split())
"""102 words; the first one contained in an option value stands for the whole value."""
