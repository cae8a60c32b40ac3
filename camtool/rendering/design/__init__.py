"""The look that all pages share: tokens, parts and the logo, as files that a page carries inside."""
