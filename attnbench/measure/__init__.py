"""How much? Clocks, time, memory, cost and ceilings; ``cell`` makes one record of them."""
