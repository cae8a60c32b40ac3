"""Models of Keras 3 on its torch backend, and ``.keras`` files, which are the same for every backend."""
