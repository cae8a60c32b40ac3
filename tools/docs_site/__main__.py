"""Build the site: ``python -m tools.docs_site [OUT]``."""

from tools.docs_site.building import main

main()
