/* The protocol of shim/registry/handles.h with shim/base/read_section.h, for spin: every interleaving of two readers and
 * one writer, who hands out, kills and hands out again two handles that fall on the same slot, rebuilds
 * the table, and uses dead records and old tables again.
 *
 * Not modelled: that the fast side reads a mask before the table, both of which only grow; all tables here have one size.
 *
 * What must hold:
 *   - nobody reads a table or a record that is free to be used for something else;
 *   - a launch finds what its handle meant at some moment between its begin and its end, or, if the
 *     handle was dead at one, that it is not known.
 *
 * Stores become visible in order (x86; elsewhere they are releases), but a reader's entry into its
 * section may stay in its store buffer while it reads on: `entered` is what the reader has done, `seen` what
 * others can see of it. membarrier empties all buffers. The writer holds the lock: one process.
 *
 * With SWAPS the writer also puts another generation in force (put_in_force() in handles.cc): it prepares
 * successors of the records that live, outside the lock, so that handles come and die in between, and then
 * publishes a table of them; what has no successor goes over as it is, unmatched. A hand-out, too, begins
 * its record before it takes the lock. What must hold besides:
 *   - a launch finds a record of the generation in force at its begin, or of a later one, or an unmatched
 *     one;
 *   - a record's successor is that of the same handle.
 *
 * Broken on purpose, each of these must be found out:
 *   NO_FENCE    no membarrier          NO_WAIT     no grace period
 *   VALUE_LATE  a new table is published before it is filled
 *   NO_LOOK     a hand-out publishes a record of a generation that has gone
 *   NO_SECTION  successors are prepared outside of a read section: a record may be another's by then
 */
#ifndef READERS
#define READERS 1
#endif
#ifndef LOOKUPS
#define LOOKUPS 2
#endif
#ifndef CHANGES
#define CHANGES 4
#endif
#define KEYS    2
#define CELLS   3 /* both keys, and one that ends the search */
#define TABLES  4 /* number 0 is the empty one that is there first */
#ifdef SWAPS
#define RECORDS 5 /* number 0 is none */
#else
#define RECORDS 4 /* number 0 is none */
#endif

typedef Table {
  byte key[CELLS];
  byte value[CELLS];
#ifdef SWAPS
  byte unmatched; /* cells, as bits */
#endif
  bool is_used
}
Table tables[TABLES];
byte current; /* the published one */

byte record_key[RECORDS];
byte record_version[RECORDS];
bool record_is_used[RECORDS];
#ifdef SWAPS
byte generation;                  /* in force */
byte record_generation[RECORDS];
byte successor[RECORDS];          /* by the old record; 0: none */
byte begun_record, begun_key;     /* a hand-out outside of the lock; 0: none */
bool is_preparing;                /* the watcher is within its read section */
bool is_waited_watcher;
#endif

/* What a handle means, by its number of changes: odd, it lives. */
byte version[KEYS + 1];

byte entered[READERS], seen[READERS];

/* read_section.h */
inline enter() { entered[_pid]++ }
inline leave() { entered[_pid]++ }

active[READERS] proctype reader() {
  byte key, table, cell, found, value, begun, lookups;
#ifdef SWAPS
  byte begun_generation;
  bool is_unmatched;
#endif
  do
  :: lookups < LOOKUPS ->
    lookups++;
    if :: key = 1 :: key = 2 fi;
    begun = version[key];
#ifdef SWAPS
    begun_generation = generation;
#endif
    enter();
    table = current;
    cell = 0;
    do
    :: assert(table == 0 || tables[table].is_used);
      found = tables[table].key[cell];
      if
      :: found == key ->
        assert(table == 0 || tables[table].is_used);
#ifdef SWAPS
        /* The mark is part of the value. */
        atomic { value = tables[table].value[cell]; is_unmatched = tables[table].unmatched >> cell & 1 };
#else
        value = tables[table].value[cell];
#endif
        break
      :: found == 0 -> value = 0; break
      :: else -> cell++
      fi
    od;
    if
    :: value != 0 ->
      atomic {
        assert(record_is_used[value]);
        assert(record_key[value] == key);
#ifdef SWAPS
        assert(record_generation[value] >= begun_generation || is_unmatched);
#endif
        found = record_version[value]
      }
    :: else -> found = 0
    fi;
    leave();
    atomic {
      if
      :: value != 0 -> assert(found >= begun && found <= version[key])
      :: else -> assert(begun % 2 == 0 || version[key] > begun)
      fi;
      key = 0; table = 0; cell = 0; found = 0; value = 0; begun = 0;
#ifdef SWAPS
      begun_generation = 0; is_unmatched = false
#endif
    }
  :: else -> break
  od
}

/* The readers' store buffers. */
active proctype buffers() {
end:
  do
  :: d_step { seen[0] < entered[0] -> seen[0]++ }
#if READERS > 1
  :: d_step { seen[1] < entered[1] -> seen[1]++ }
#endif
  od
}

byte collected_records, waiting_records; /* as bits */
byte collected_tables, waiting_tables;
byte waited_for[READERS];
bool is_waited[READERS];

inline free_waiting() {
  atomic {
    i = 1;
    do
    :: i < RECORDS ->
      if :: waiting_records >> i & 1 -> record_is_used[i] = false :: else fi;
      i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < TABLES ->
      if :: waiting_tables >> i & 1 -> tables[i].is_used = false :: else fi;
      i++
    :: else -> break
    od;
    waiting_records = 0; waiting_tables = 0
  }
}

inline begin_grace() {
#ifdef SWAPS
  is_waited_watcher = true;
#endif
#ifndef NO_FENCE
  atomic {
    i = 0;
    do
    :: i < READERS -> seen[i] = entered[i]; i++
    :: else -> break
    od
  };
#endif
  i = 0;
  do
  :: i < READERS -> atomic { waited_for[i] = seen[i]; is_waited[i] = seen[i] % 2; i++ }
  :: else -> break
  od
}

inline ask_grace() {
  has_ended = true;
#if defined(SWAPS) && !defined(NO_SECTION)
  atomic {
    if :: !is_preparing -> is_waited_watcher = false :: else fi;
    if :: is_waited_watcher -> has_ended = false :: else fi
  };
#endif
  i = 0;
  do
  :: i < READERS ->
    atomic {
      if :: is_waited[i] && seen[i] != waited_for[i] -> is_waited[i] = false :: else fi;
      if :: is_waited[i] -> has_ended = false :: else fi;
      i++
    }
  :: else -> break
  od
#ifdef NO_WAIT
  has_ended = true
#endif
}

/* reuse_what_none_reads() */
inline reuse() {
  rounds = 0;
  do
  :: rounds == 2 -> break
  :: else ->
    rounds++;
    if
    :: waiting_records != 0 || waiting_tables != 0 ->
      ask_grace();
      if :: has_ended -> free_waiting() :: else -> break fi
    :: else
    fi;
    if
    :: collected_records == 0 && collected_tables == 0 -> break
    :: else ->
      atomic {
        waiting_records = collected_records; waiting_tables = collected_tables;
        collected_records = 0; collected_tables = 0
      };
      begin_grace()
    fi
  od
}

inline find_cell(table_at, wanted) {
  cell = 0;
  do
  :: tables[table_at].key[cell] == wanted -> break
  :: tables[table_at].key[cell] == 0 -> break
  :: else -> cell++
  od
}

inline kill() {
  atomic {
    find_cell(current, key);
    previous = 0;
    if :: tables[current].key[cell] == key -> previous = tables[current].value[cell] :: else fi
  };
  if
  :: previous != 0 ->
    atomic {
      tables[current].value[cell] = 0;
      version[key]++;
      collected_records = collected_records | 1 << previous
    };
    reuse()
  :: else
  fi;
  previous = 0
}

inline clear(table_at) {
  tables[table_at].is_used = true;
#ifdef SWAPS
  tables[table_at].unmatched = 0;
#endif
  i = 0;
  do
  :: i < CELLS -> tables[table_at].key[i] = 0; tables[table_at].value[i] = 0; i++
  :: else -> break
  od
}

/* Copies what lives: a dead key is dropped. */
inline copy_living() {
  i = 0;
  cell = 0;
  do
  :: i < CELLS ->
    if
    :: tables[previous].value[i] != 0 ->
      tables[next].key[cell] = tables[previous].key[i];
      tables[next].value[cell] = tables[previous].value[i];
#ifdef SWAPS
      if
      :: tables[previous].unmatched >> i & 1 -> tables[next].unmatched = tables[next].unmatched | 1 << cell
      :: else
      fi;
#endif
      cell++
    :: else
    fi;
    i++
  :: else -> break
  od
}

inline rebuild() {
  next = 1;
  do
  :: next < TABLES && tables[next].is_used -> next++
  :: else -> break
  od;
  if
  :: next < TABLES ->
    previous = current;
#ifdef VALUE_LATE
    atomic { clear(next) };
    current = next;
    atomic { copy_living() };
#else
    atomic { clear(next); copy_living() };
    current = next;
#endif
    if :: previous != 0 -> collected_tables = collected_tables | 1 << previous :: else fi;
    reuse()
  :: else
  fi;
  next = 0; previous = 0
}

inline hand_out() {
  if :: current == 0 -> rebuild() :: else fi;
  i = 1;
  do
  :: i < RECORDS && record_is_used[i] -> i++
  :: else -> break
  od;
  record = i;
  if
  :: record < RECORDS ->
    /* No reader can see it yet. A handle that lives is replaced: its death was not seen. */
    atomic {
      record_is_used[record] = true;
      record_key[record] = key;
      record_version[record] = version[key] + 1 + version[key] % 2;
#ifdef SWAPS
      record_generation[record] = generation;
#endif
      find_cell(current, key)
    };
    if
    :: tables[current].key[cell] == 0 -> tables[current].key[cell] = key
    :: else
    fi;
    atomic {
      previous = tables[current].value[cell];
      tables[current].value[cell] = record;
#ifdef SWAPS
      tables[current].unmatched = tables[current].unmatched & ~(1 << cell);
#endif
      version[key] = record_version[record];
      if :: previous != 0 -> collected_records = collected_records | 1 << previous :: else fi
    };
    reuse()
  :: else
  fi;
  record = 0; previous = 0
}

#ifdef SWAPS
/* The lowest record that is not used; RECORDS: none. */
inline free_record() {
  record = 1;
  do
  :: record < RECORDS && record_is_used[record] -> record++
  :: else -> break
  od
}

/* Records of the next generation for all that live. */
inline prepare() {
  /* Nobody else sees what this does, but that the records are used. */
  atomic {
    is_preparing = true;
    i = 0;
    do
    :: i < CELLS && current != 0 ->
      previous = tables[current].value[i];
      free_record();
      if
      :: previous != 0 && successor[previous] == 0 && record < RECORDS ->
        record_is_used[record] = true;
        record_key[record] = record_key[previous];
        record_version[record] = record_version[previous];
        record_generation[record] = generation + 1;
        successor[previous] = record
      :: else
      fi;
      i++
    :: else -> break
    od;
    record = 0; previous = 0
  }
}

/* Under the lock. */
inline swap() {
  next = 1;
  do
  :: next < TABLES && tables[next].is_used -> next++
  :: else -> break
  od;
  if
  :: next < TABLES && current != 0 ->
    previous = current;
    atomic {
      clear(next);
      copy_living();
      cell = 0;
      do
      :: cell < CELLS ->
        record = tables[next].value[cell];
        if
        :: record != 0 && successor[record] != 0 ->
          assert(record_key[successor[record]] == tables[next].key[cell]);
          tables[next].value[cell] = successor[record];
          tables[next].unmatched = tables[next].unmatched & ~(1 << cell);
          collected_records = collected_records | 1 << record;
          successor[record] = 0
        :: record != 0 && successor[record] == 0 ->
          tables[next].unmatched = tables[next].unmatched | 1 << cell
        :: else
        fi;
        cell++
      :: else -> break
      od;
    }
    /* One store after the other; a launch reads the table alone. */
    atomic { current = next; generation++ };
    collected_tables = collected_tables | 1 << previous;
    reuse()
  :: else
  fi;
  /* Successors of what has died meanwhile; nobody else has seen them. */
  atomic {
    i = 1;
    do
    :: i < RECORDS ->
      if
      :: successor[i] != 0 -> record_is_used[successor[i]] = false; successor[i] = 0
      :: else
      fi;
      i++
    :: else -> break
    od;
    is_preparing = false;
    record = 0; next = 0; previous = 0
  }
}

/* Of a handle that the driver has given out. */
inline begin_hand_out() {
  atomic {
    free_record();
    if
    :: record < RECORDS && begun_record == 0 ->
      record_is_used[record] = true;
      record_key[record] = key;
      record_generation[record] = generation;
      begun_record = record;
      begun_key = key
    :: else
    fi;
    record = 0
  }
}

/* Under the lock; too late: another record is begun. */
inline end_hand_out() {
  if
  :: begun_record != 0 && current != 0 ->
#ifndef NO_LOOK
    if :: record_generation[begun_record] != generation -> record_generation[begun_record] = generation :: else fi;
#endif
    atomic {
      key = begun_key;
      record_version[begun_record] = version[key] + 1 + version[key] % 2;
      find_cell(current, key)
    };
    if
    :: tables[current].key[cell] == 0 -> tables[current].key[cell] = key
    :: else
    fi;
    atomic {
      previous = tables[current].value[cell];
      tables[current].value[cell] = begun_record;
      tables[current].unmatched = tables[current].unmatched & ~(1 << cell);
      version[key] = record_version[begun_record];
      if :: previous != 0 -> collected_records = collected_records | 1 << previous :: else fi;
      begun_record = 0; begun_key = 0
    };
    reuse()
  :: else
  fi;
  previous = 0
}
#endif

active proctype writer() {
  byte changes, key, record, previous, next, cell, i, rounds;
  bool has_ended;
  do
  :: changes < CHANGES ->
    changes++;
    if
    :: key = 1; hand_out()
    :: key = 2; hand_out()
    :: key = 1; kill()
    :: rebuild()
    :: reuse()
#ifdef SWAPS
    :: prepare()
    :: swap()
    :: key = 1; begin_hand_out()
    :: end_hand_out()
#endif
    fi;
    atomic { key = 0; cell = 0; i = 0; rounds = 0; has_ended = false }
  :: else -> break
  od
}
