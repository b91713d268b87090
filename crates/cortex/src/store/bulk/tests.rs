//! Transfers between two directories.
