"""Workers on other machines: Ray places and watches them. Only this package loads Ray."""
