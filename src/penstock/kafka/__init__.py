"""The only place that touches confluent_kafka: clients, transactions, topics, and the translation of their errors."""
