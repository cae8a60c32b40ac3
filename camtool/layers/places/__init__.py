"""Where the cells of a layer lie for one image: what content decides, and what pixels a cell depends on."""
