"""What every benchmark needs: the gate, the ledger, real data."""
