"""What every benchmark needs: contenders, the gate, the race, the ledgers, real data."""
