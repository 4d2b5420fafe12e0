"""What all variants of a process share with each other and with the ruler: nobody may change it."""
