//! Tests of transfers between directories over streams that are cut and corrupted.

mod attacks;
mod cuts;
mod reading;
mod world;
