//! More frameworks of languages that the plain run knows already: `./test --long` runs these, or
//! their names.

mod guestbooks;
mod haskell;
mod pekko;
mod pyramid;
mod spring_boot;
