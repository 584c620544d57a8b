"""Lightning modules and the engines that run a cohort with them."""
