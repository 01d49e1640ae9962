"""The only package that knows all the others: builds the parts, runs the loop."""
