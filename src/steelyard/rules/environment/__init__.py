"""SY6xx: nodes, hosts, drivers and clocks."""
