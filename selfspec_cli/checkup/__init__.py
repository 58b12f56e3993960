"""`selfspec verify`: is decoding exact with this model, on this machine, in this number format?"""
