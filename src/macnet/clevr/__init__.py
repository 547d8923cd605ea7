"""The generated CLEVR world: scenes, images and questions, independent of any model."""
