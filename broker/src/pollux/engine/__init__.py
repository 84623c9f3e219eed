"""The broker between protocols and store: post office, addresses, accounts, paging, dead letters, security."""
