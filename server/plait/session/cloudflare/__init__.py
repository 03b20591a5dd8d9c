"""The Cloudflare Agents protocol."""
