"""What several tests share: tiny models."""
