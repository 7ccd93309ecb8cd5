/* The protocol of shim/handles.h with shim/read_section.h, for spin: every interleaving of two readers and
 * one writer, who hands out, kills and hands out again two handles that fall on the same slot, rebuilds
 * the table, and uses dead records and old tables again.
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
 * Broken on purpose, each of these must be found out:
 *   NO_FENCE    no membarrier          NO_WAIT     no grace period
 *   VALUE_LATE  a new table is published before it is filled
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
#define RECORDS 4 /* number 0 is none */

typedef Table {
  byte key[CELLS];
  byte value[CELLS];
  bool is_used
}
Table tables[TABLES];
byte current; /* the published one */

byte record_key[RECORDS];
byte record_version[RECORDS];
bool record_is_used[RECORDS];

/* What a handle means, by its number of changes: odd, it lives. */
byte version[KEYS + 1];

byte entered[READERS], seen[READERS];

/* read_section.h */
inline enter() { entered[_pid]++ }
inline leave() { entered[_pid]++ }

active[READERS] proctype reader() {
  byte key, table, cell, found, value, begun, lookups;
  do
  :: lookups < LOOKUPS ->
    lookups++;
    if :: key = 1 :: key = 2 fi;
    begun = version[key];
    enter();
    table = current;
    cell = 0;
    do
    :: assert(table == 0 || tables[table].is_used);
      found = tables[table].key[cell];
      if
      :: found == key ->
        assert(table == 0 || tables[table].is_used);
        value = tables[table].value[cell];
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
      key = 0; table = 0; cell = 0; found = 0; value = 0; begun = 0
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
      find_cell(current, key)
    };
    if
    :: tables[current].key[cell] == 0 -> tables[current].key[cell] = key
    :: else
    fi;
    atomic {
      previous = tables[current].value[cell];
      tables[current].value[cell] = record;
      version[key] = record_version[record];
      if :: previous != 0 -> collected_records = collected_records | 1 << previous :: else fi
    };
    reuse()
  :: else
  fi;
  record = 0; previous = 0
}

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
    fi;
    atomic { key = 0; cell = 0; i = 0; rounds = 0; has_ended = false }
  :: else -> break
  od
}
