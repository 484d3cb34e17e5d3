"""The ptb dataset."""
