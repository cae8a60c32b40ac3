"""Commands that explain one file of many images: slides and videos."""
