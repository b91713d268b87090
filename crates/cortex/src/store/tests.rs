//! The store on a real disk, through its trait.

mod contract;
mod fixture;
