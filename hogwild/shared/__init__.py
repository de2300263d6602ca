"""What workers share: bytes of one arena, and what lies where. Knows no optimizer and no rule."""
