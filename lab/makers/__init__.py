"""What makes shipped data: the parser, the nonces; and the generated parts of the documentation."""
