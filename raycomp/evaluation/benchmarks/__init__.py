"""Published benchmark files, read into one row shape; no model is loaded and no image is opened."""
