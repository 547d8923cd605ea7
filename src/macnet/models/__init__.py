"""Networks that answer questions about a knowledge base, step by step."""
