"""The CLEVR world: scenes, pictures and questions, with no knowledge of any model."""
