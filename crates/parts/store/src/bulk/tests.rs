//! Transfers between directories over streams that are cut, bent and lied through.

mod attacks;
mod cuts;
mod reading;
mod world;
