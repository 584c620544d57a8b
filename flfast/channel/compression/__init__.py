"""Messages of fewer bytes than a change; `conf/compression` explains their settings."""
