"""Ask the store: `bodies` says what to ask, `elastic` asks it, `store` is what any store must answer."""
