; Records one call of `printf` in the print buffer of the launch (`PRINT_USED` of the ABI).
; Numbers in braces are offsets and limits of the ABI.
;
; The format is read twice: first to measure the record, then to write it into the space that was
; reserved. The host formats the text. Here, the format only tells which bytes are arguments and
; which arguments are strings. As in C, a directive begins at `%` and ends at its letter; text that
; is no directive takes no arguments.
;
; `%limit` is the number of bytes that may be read at `%arguments`. Returns the number of arguments,
; or -1 without a format, without a buffer, or if there are fewer arguments than the format needs.
define internal i32 @atoll.print(ptr addrspace(1) %buffer, ptr %format, ptr addrspace(5) %arguments, i32 %limit, i32 %line, i32 %thread) #1 {
entry:
  ; Index of the next character.
  %at = alloca i32, align 4, addrspace(5)
  ; 0 in text, 1 behind a `%`, 2 further inside a directive.
  %state = alloca i32, align 4, addrspace(5)
  ; Whether the directive has a length for 64 bits.
  %long = alloca i1, align 1, addrspace(5)
  ; Bytes and number of the arguments so far.
  %taken = alloca i32, align 4, addrspace(5)
  %count = alloca i32, align 4, addrspace(5)
  ; Where the next string goes: in the record, or counted from 0 while the record is measured.
  %top = alloca i32, align 4, addrspace(5)
  ; The record, or null while it is measured.
  %record = alloca ptr addrspace(1), align 8, addrspace(5)
  %size = alloca i32, align 4, addrspace(5)
  %no.buffer = icmp eq ptr addrspace(1) %buffer, null
  %no.format = icmp eq ptr %format, null
  %nothing = or i1 %no.buffer, %no.format
  br i1 %nothing, label %refused, label %begin

refused:
  ret i32 -1

begin:
  store i32 0, ptr addrspace(5) %top
  store i32 0, ptr addrspace(5) %size
  store ptr addrspace(1) null, ptr addrspace(5) %record
  br label %read

read:
  store i32 0, ptr addrspace(5) %at
  store i32 0, ptr addrspace(5) %state
  store i1 false, ptr addrspace(5) %long
  store i32 0, ptr addrspace(5) %taken
  store i32 0, ptr addrspace(5) %count
  br label %next

next:
  %index = load i32, ptr addrspace(5) %at
  %to = load ptr addrspace(1), ptr addrspace(5) %record
  %writes = icmp ne ptr addrspace(1) %to, null
  %from = getelementptr i8, ptr %format, i32 %index
  %character = load i8, ptr %from
  %is.end = icmp eq i8 %character, 0
  %is.cut = icmp eq i32 %index, {string_max}
  %is.over = or i1 %is.end, %is.cut
  br i1 %is.over, label %over, label %character.found

character.found:
  br i1 %writes, label %copy, label %scan

copy:
  %behind.head = getelementptr i8, ptr addrspace(1) %to, i32 {head}
  %copied.to = getelementptr i8, ptr addrspace(1) %behind.head, i32 %index
  store i8 %character, ptr addrspace(1) %copied.to
  br label %scan

scan:
  %index.next = add i32 %index, 1
  store i32 %index.next, ptr addrspace(5) %at
  %was = load i32, ptr addrspace(5) %state
  %in.text = icmp eq i32 %was, 0
  br i1 %in.text, label %text, label %directive

text:
  %opens = icmp eq i8 %character, 37
  %opened = zext i1 %opens to i32
  store i32 %opened, ptr addrspace(5) %state
  store i1 false, ptr addrspace(5) %long
  br label %next

directive:
  store i32 2, ptr addrspace(5) %state
  switch i8 %character, label %close [
    i8 37, label %percent
    ; Flags, width and precision: blank # + - . 0 to 9, and h.
    i8 32, label %next
    i8 35, label %next
    i8 43, label %next
    i8 45, label %next
    i8 46, label %next
    i8 48, label %next
    i8 49, label %next
    i8 50, label %next
    i8 51, label %next
    i8 52, label %next
    i8 53, label %next
    i8 54, label %next
    i8 55, label %next
    i8 56, label %next
    i8 57, label %next
    i8 104, label %next
    ; *
    i8 42, label %width
    ; j l t z
    i8 106, label %lengthen
    i8 108, label %lengthen
    i8 116, label %lengthen
    i8 122, label %lengthen
    ; X d i o u x
    i8 88, label %integer
    i8 100, label %integer
    i8 105, label %integer
    i8 111, label %integer
    i8 117, label %integer
    i8 120, label %integer
    ; c
    i8 99, label %four
    ; A E F G a e f g, and p
    i8 65, label %eight
    i8 69, label %eight
    i8 70, label %eight
    i8 71, label %eight
    i8 97, label %eight
    i8 101, label %eight
    i8 102, label %eight
    i8 103, label %eight
    i8 112, label %eight
    ; s
    i8 115, label %string
  ]

percent:
  ; `%%` is a percent sign. Elsewhere the directive was none, and another one begins.
  %is.second = icmp eq i32 %was, 1
  %again = select i1 %is.second, i32 0, i32 1
  store i32 %again, ptr addrspace(5) %state
  store i1 false, ptr addrspace(5) %long
  br label %next

close:
  store i32 0, ptr addrspace(5) %state
  br label %next

lengthen:
  store i1 true, ptr addrspace(5) %long
  br label %next

width:
  br label %argument

integer:
  %is.long = load i1, ptr addrspace(5) %long
  %bytes.of.integer = select i1 %is.long, i32 8, i32 4
  br label %argument

four:
  br label %argument

eight:
  br label %argument

string:
  br label %argument

argument:
  %bytes = phi i32 [ 4, %width ], [ %bytes.of.integer, %integer ], [ 4, %four ], [ 8, %eight ], [ 8, %string ]
  %state.next = phi i32 [ 2, %width ], [ 0, %integer ], [ 0, %four ], [ 0, %eight ], [ 0, %string ]
  %is.string = phi i1 [ false, %width ], [ false, %integer ], [ false, %four ], [ false, %eight ], [ true, %string ]
  store i32 %state.next, ptr addrspace(5) %state
  %taken.before = load i32, ptr addrspace(5) %taken
  %bytes.less = sub i32 %bytes, 1
  %raised = add i32 %taken.before, %bytes.less
  %mask = sub i32 0, %bytes
  %argument.at = and i32 %raised, %mask
  %taken.next = add i32 %argument.at, %bytes
  store i32 %taken.next, ptr addrspace(5) %taken
  %count.before = load i32, ptr addrspace(5) %count
  %count.next = add i32 %count.before, 1
  store i32 %count.next, ptr addrspace(5) %count
  %is.there = icmp ule i32 %taken.next, %limit
  %is.read = and i1 %is.string, %is.there
  br i1 %is.read, label %find.string, label %next

find.string:
  %slot = getelementptr i8, ptr addrspace(5) %arguments, i32 %argument.at
  %address = load i64, ptr addrspace(5) %slot, align 4
  %is.null = icmp eq i64 %address, 0
  br i1 %is.null, label %next, label %record.string

record.string:
  %source = inttoptr i64 %address to ptr
  %head = load i32, ptr addrspace(5) %top
  %body = add i32 %head, {string_head}
  br label %next.byte

next.byte:
  %length = phi i32 [ 0, %record.string ], [ %length.next, %byte.done ]
  %byte.from = getelementptr i8, ptr %source, i32 %length
  %byte = load i8, ptr %byte.from
  %string.ends = icmp eq i8 %byte, 0
  %string.is.cut = icmp eq i32 %length, {string_max}
  %string.is.over = or i1 %string.ends, %string.is.cut
  br i1 %string.is.over, label %string.over, label %byte.found

byte.found:
  br i1 %writes, label %copy.byte, label %byte.done

copy.byte:
  %body.at = getelementptr i8, ptr addrspace(1) %to, i32 %body
  %byte.to = getelementptr i8, ptr addrspace(1) %body.at, i32 %length
  store i8 %byte, ptr addrspace(1) %byte.to
  br label %byte.done

byte.done:
  %length.next = add i32 %length, 1
  br label %next.byte

string.over:
  br i1 %writes, label %write.head, label %string.done

write.head:
  %head.to = getelementptr i8, ptr addrspace(1) %to, i32 %head
  store i64 %address, ptr addrspace(1) %head.to, align 4
  %length.to = getelementptr i8, ptr addrspace(1) %head.to, i32 8
  store i32 %length, ptr addrspace(1) %length.to, align 4
  br label %string.done

string.done:
  %string.end = add i32 %body, %length
  %string.raised = add i32 %string.end, 3
  %top.next = and i32 %string.raised, -4
  store i32 %top.next, ptr addrspace(5) %top
  br label %next

over:
  %needed = load i32, ptr addrspace(5) %taken
  %is.enough = icmp ule i32 %needed, %limit
  %available = select i1 %is.enough, i32 %needed, i32 %limit
  %kept = and i32 %available, -4
  %format.raised = add i32 %index, 3
  %format.bytes = and i32 %format.raised, -4
  %arguments.at = add i32 %format.bytes, {head}
  br i1 %writes, label %next.word, label %reserve

reserve:
  %strings.bytes = load i32, ptr addrspace(5) %top
  %strings.at = add i32 %arguments.at, %kept
  %total = add i32 %strings.at, %strings.bytes
  %total.raised = add i32 %total, 7
  %record.bytes = and i32 %total.raised, -8
  %record.bytes.wide = zext i32 %record.bytes to i64
  %begin.at = atomicrmw add ptr addrspace(1) %buffer, i64 %record.bytes.wide monotonic, align 8
  %end.at = add i64 %begin.at, %record.bytes.wide
  %capacity.at = getelementptr i8, ptr addrspace(1) %buffer, i32 {capacity}
  %capacity = load i32, ptr addrspace(1) %capacity.at, align 4
  %capacity.wide = zext i32 %capacity to i64
  %fits = icmp ule i64 %end.at, %capacity.wide
  br i1 %fits, label %reserved, label %dropped

dropped:
  %dropped.at = getelementptr i8, ptr addrspace(1) %buffer, i32 {dropped}
  %dropped.before = atomicrmw add ptr addrspace(1) %dropped.at, i32 1 monotonic, align 4
  br label %done

reserved:
  %records = getelementptr i8, ptr addrspace(1) %buffer, i32 {records}
  %new = getelementptr i8, ptr addrspace(1) %records, i64 %begin.at
  store ptr addrspace(1) %new, ptr addrspace(5) %record
  store i32 %strings.at, ptr addrspace(5) %top
  store i32 %record.bytes, ptr addrspace(5) %size
  br label %read

next.word:
  %word.at = phi i32 [ 0, %over ], [ %word.next, %copy.word ]
  %has.more = icmp ult i32 %word.at, %kept
  br i1 %has.more, label %copy.word, label %finish

copy.word:
  %word.from = getelementptr i8, ptr addrspace(5) %arguments, i32 %word.at
  %word = load i32, ptr addrspace(5) %word.from, align 4
  %words.to = getelementptr i8, ptr addrspace(1) %to, i32 %arguments.at
  %word.to = getelementptr i8, ptr addrspace(1) %words.to, i32 %word.at
  store i32 %word, ptr addrspace(1) %word.to, align 4
  %word.next = add i32 %word.at, 4
  br label %next.word

finish:
  %line.to = getelementptr i8, ptr addrspace(1) %to, i32 {line}
  store i32 %line, ptr addrspace(1) %line.to, align 4
  %thread.to = getelementptr i8, ptr addrspace(1) %to, i32 {thread}
  store i32 %thread, ptr addrspace(1) %thread.to, align 4
  %format.to = getelementptr i8, ptr addrspace(1) %to, i32 {format}
  store i32 %index, ptr addrspace(1) %format.to, align 4
  %kept.to = getelementptr i8, ptr addrspace(1) %to, i32 {arguments}
  store i32 %kept, ptr addrspace(1) %kept.to, align 4
  %bytes.recorded = load i32, ptr addrspace(5) %size
  ; The host reads a record whose size is there.
  store atomic i32 %bytes.recorded, ptr addrspace(1) %to release, align 8
  br label %done

done:
  %arguments.taken = load i32, ptr addrspace(5) %count
  %result = select i1 %is.enough, i32 %arguments.taken, i32 -1
  ret i32 %result
}
