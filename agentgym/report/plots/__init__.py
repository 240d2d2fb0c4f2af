"""Charts as data, and matplotlib that draws them as SVG for a page.

A chart says what is plotted, over what, with which interval; how it looks is decided in one place,
so that every page has the same colours, hover texts and descriptions.
"""
