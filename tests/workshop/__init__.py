"""Tools beside the product, with their own tests: `make workshop`."""
