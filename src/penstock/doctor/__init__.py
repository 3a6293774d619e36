"""Is all as Penstock needs it? `look` sees, `findings` judges (pure), `mend` repairs what can be without loss."""
