"""The token path: conversations to the ids that are sampled from, and sampled ids to messages."""
