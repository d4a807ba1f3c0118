"""Files that appear together: data first, then the manifest that names them."""
