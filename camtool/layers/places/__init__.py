"""Places of a layer's cells for one image: detect content-dependent geometry, and measure receptive fields."""
