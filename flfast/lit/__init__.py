"""Everything that depends on Lightning: modules, reused Trainers and strategies."""
