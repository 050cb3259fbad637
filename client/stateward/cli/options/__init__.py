"""What commands share: their options, the client these lead to, and which commands there are."""
