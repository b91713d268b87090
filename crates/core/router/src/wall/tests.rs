//! Tests of passwords as a router's threads have them looked at.

use super::*;

const SALT: &[u8; SALT_BYTES] = b"sixteen bytes ok";
const RIGHT: &str = "open sesame";

fn at(ms: u64) -> Timestamp {
    Timestamp(1_000_000 + ms)
}

/// One that is quick to look at.
fn password(text: &str) -> Password {
    let mut hash = [0; HASH_BYTES];
    let rounds = NonZeroU32::MIN;
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, rounds, SALT, text.as_bytes(), &mut hash);
    let (salt, hash) = (BASE64_STANDARD.encode(SALT), BASE64_STANDARD.encode(hash));
    Password { since: at(0), salt, hash, rounds: rounds.get() }
}

fn basic(said: &str) -> String {
    format!("Basic {}", BASE64_STANDARD.encode(format!("ana:{said}")))
}

fn walls() -> Walls {
    Walls::new(&[7; 32])
}

/// Asks as a router does; returns what becomes of the request, and whether a password was hashed.
fn ask(
    walls: &mut Walls,
    now: Timestamp,
    of: &Password,
    from: &str,
    field: &str,
) -> (&'static str, bool) {
    let client: IpAddr = from.parse().unwrap();
    let word = |verdict: &Verdict| match verdict {
        Verdict::Passes => "passes",
        Verdict::Asked => "asked",
        Verdict::TooMany => "too many",
        Verdict::Unknown(_) => "unknown",
    };
    let field = Some(field.as_bytes()).filter(|field| !field.is_empty());
    let guess = match walls.look(now, of, client, field) {
        Verdict::Unknown(guess) => guess,
        verdict => return (word(&verdict), false),
    };
    match walls.begin(now, guess) {
        Verdict::Unknown(guess) => {
            let is_right = guess.is_right(of);
            walls.learn(now, guess, is_right);
            (if is_right { "passes" } else { "asked" }, true)
        }
        verdict => (word(&verdict), false),
    }
}

#[test]
fn what_is_kept_of_a_password_knows_it_again_and_does_not_tell_it() {
    let kept = protect(RIGHT, SALT, at(0));
    assert!(kept.rounds >= 600_000);
    let mut walls = walls();
    assert_eq!(ask(&mut walls, at(0), &kept, "10.0.0.1", &basic(RIGHT)), ("passes", true));
    assert_eq!(ask(&mut walls, at(0), &kept, "10.0.0.1", &basic("another one")), ("asked", true));
    let stored = String::from_utf8(model::record::encode(&kept)).unwrap();
    assert!(!format!("{kept:?}{stored}").contains(RIGHT));
}

#[test]
fn a_good_password_is_hashed_once_for_everybody_and_a_bad_one_too() {
    let (mut walls, kept) = (walls(), password(RIGHT));
    assert_eq!(ask(&mut walls, at(0), &kept, "10.0.0.1", ""), ("asked", false));
    assert_eq!(ask(&mut walls, at(0), &kept, "10.0.0.1", &basic(RIGHT)), ("passes", true));
    assert_eq!(ask(&mut walls, at(1), &kept, "10.0.0.2", &basic(RIGHT)), ("passes", false));
    for _ in 0..50 {
        ask(&mut walls, at(1), &kept, "10.0.0.1", &basic("of before"));
    }
    assert_eq!(ask(&mut walls, at(1), &kept, "10.0.0.1", &basic("of before")), ("asked", false));
    // Another password, or that of another application, is another one.
    let other = password("another one");
    assert_eq!(ask(&mut walls, at(1), &other, "10.0.0.1", &basic(RIGHT)), ("asked", true));
}

#[test]
fn an_address_guesses_a_few_times_and_then_waits_while_others_pass() {
    let (mut walls, kept) = (walls(), password(RIGHT));
    let guess = |walls: &mut Walls, now, from: &str, number: u64| {
        ask(walls, now, &kept, from, &basic(&format!("guess {number}")))
    };
    for number in 0..GUESSES_MAX {
        assert_eq!(guess(&mut walls, at(0), "2001:db8::1", number), ("asked", true));
    }
    // The right one is not even looked at, from wherever that subscriber asks.
    assert_eq!(guess(&mut walls, at(0), "2001:db8::2", 99), ("too many", false));
    assert_eq!(ask(&mut walls, at(0), &kept, "2001:db8::3", &basic(RIGHT)), ("too many", false));
    assert_eq!(ask(&mut walls, at(0), &kept, "2001:db8:0:1::1", &basic(RIGHT)), ("passes", true));
    // It is known now, and so passes from there as well.
    assert_eq!(ask(&mut walls, at(0), &kept, "2001:db8::3", &basic(RIGHT)), ("passes", false));
    assert_eq!(guess(&mut walls, at(GUESS_MS), "2001:db8::1", 100), ("asked", true));
    assert_eq!(guess(&mut walls, at(GUESS_MS), "2001:db8::1", 101), ("too many", false));
}

#[test]
fn right_passwords_are_no_guesses() {
    let mut walls = walls();
    for number in 0..3 * GUESSES_MAX {
        let text = format!("password {number}");
        let kept = password(&text);
        assert_eq!(ask(&mut walls, at(0), &kept, "10.0.0.1", &basic(&text)), ("passes", true));
    }
    assert!(walls.clients.is_empty());
}

#[test]
fn memory_has_an_end() {
    let (mut walls, kept) = (walls(), password(RIGHT));
    for number in 0..(CLIENTS_MAX as u32 + 50) {
        let from = std::net::Ipv4Addr::from(number).to_string();
        ask(&mut walls, at(0), &kept, &from, &basic(&format!("guess {number}")));
    }
    assert_eq!(walls.clients.len(), CLIENTS_MAX);
    assert_eq!((walls.bad.all.len(), walls.bad.in_order.len()), (BAD_MAX, BAD_MAX));
}

#[test]
fn only_basic_with_a_password_in_it_is_a_guess() {
    let encoded = BASE64_STANDARD.encode("ana:pass:word");
    for (field, expected) in [
        (format!("Basic {encoded}"), Some("pass:word")),
        (format!("bAsIc   {encoded}"), Some("pass:word")),
        (format!("Basic{encoded}"), None),
        (format!("Bearer {encoded}"), None),
        (format!("Basic {}", BASE64_STANDARD.encode("ana")), None),
        (format!("Basic {}", BASE64_STANDARD.encode("ana:")), None),
        (format!("Basic {}", BASE64_STANDARD.encode(format!("a:{}", "x".repeat(129)))), None),
        ("Basic !".into(), None),
        ("".into(), None),
    ] {
        let said = password_of(field.as_bytes());
        assert_eq!(said.as_deref(), expected.map(str::as_bytes), "{field}");
    }
}

#[test]
fn a_record_that_makes_no_sense_lets_nobody_in() {
    let good = password(RIGHT);
    let guess = || {
        let verdict =
            walls().look(at(0), &good, "10.0.0.1".parse().unwrap(), Some(basic(RIGHT).as_bytes()));
        let Verdict::Unknown(guess) = verdict else { panic!() };
        guess
    };
    assert!(guess().is_right(&good));
    for odd in [
        Password { rounds: 0, ..good.clone() },
        Password { rounds: u32::MAX, ..good.clone() },
        Password { hash: String::new(), ..good.clone() },
        Password { salt: "?".into(), ..good.clone() },
    ] {
        assert!(!guess().is_right(&odd), "{odd:?}");
    }
}

#[test]
fn what_opened_the_wall_is_taken_out_of_the_head() {
    let mut head = b"GET / HTTP/1.1\r\nHost: a\r\nauthorization: Basic x\r\nA: b\r\n".to_vec();
    for _ in 0..2 {
        without_field(&mut head, "Authorization");
        assert_eq!(head, b"GET / HTTP/1.1\r\nHost: a\r\nA: b\r\n");
    }
    let other = b"GET / HTTP/1.1\r\nAuthorizations: x\r\nProxy-Authorization: y\r\n".to_vec();
    let mut head = other.clone();
    without_field(&mut head, "Authorization");
    assert_eq!(head, other);
}
