"""The environments, one package each; `registration` lists their ids."""
