"""vLLM as an engine: in the trainer's process (colocate) or as servers. Importing this loads no vLLM."""
