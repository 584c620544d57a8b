"""Who exchanges models with whom: one server, edge servers, or clients among themselves."""
