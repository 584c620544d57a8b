"""The way of uploads from local training to the server's step: channel, then reduction."""
