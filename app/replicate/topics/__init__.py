"""Partitions that routes copy, and their destination topics made fit."""
