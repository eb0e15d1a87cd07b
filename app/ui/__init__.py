"""The page: one file per tab, `page` puts them together, `server` opens it. Nothing here is needed by the batch."""
